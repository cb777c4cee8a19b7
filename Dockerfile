# docker build -t reverie .
# docker build -t reverie:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# torch's compiler, for compile=auto in long runs, calls a C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# torch for the CPU alone; the wheels of PyPI are built for CUDA and bring its libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/reverie
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY configs configs
COPY packages packages
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt ./packages/heapwatch .

# Runs are written to experiments/ here: mount a folder that this user may write to.
RUN useradd --create-home reverie
USER reverie
WORKDIR /home/reverie
CMD ["reverie-doctor"]
