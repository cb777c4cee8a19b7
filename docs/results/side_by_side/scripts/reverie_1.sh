git clone <reverie> reverie
cd reverie
python3 -m venv .venv && . .venv/bin/activate
pip install -c constraints.txt -e packages/heapwatch -e .
reverie-train experiment=dreamer_cartpole device=cpu
