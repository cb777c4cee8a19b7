import sys, time
t = time.time()
for line in sys.stdin:
    print(f"[{time.time()-t:6.1f}] {line}", end="", flush=True)
