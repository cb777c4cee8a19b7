git clone https://github.com/eloialonso/diamond.git
cd diamond
conda create -n diamond python=3.10
conda activate diamond
pip install -r requirements.txt
python src/main.py env.train.id=BreakoutNoFrameskip-v4 common.devices=0
