# docker build -t reverie .
# docker build -t reverie:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# In long runs, compile=auto uses torch's compiler, which needs a C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# This is the CPU build of torch. The wheels on PyPI include CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/reverie
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY configs configs
COPY packages packages
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt ./packages/heapwatch .

# Runs are saved in experiments/. Mount a folder that is writable for this user.
RUN useradd --create-home reverie && chmod 755 /home/reverie
USER reverie
WORKDIR /home/reverie
CMD ["reverie-doctor"]
