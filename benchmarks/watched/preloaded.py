"""Import the libraries of a program, and fork a process for each run of it: preloaded.py <program.py>.

Each line of the input is a JSON list: a folder, and the arguments of `python -m heapwatch` in that folder.
The process id is printed, and the output of the process goes to `watched.log` in the folder. On a busy
machine, imports last for minutes, so they are shared. The variables of this script are global, and no
function of it runs in the new process, so the watch cannot confuse them with those of the program.
"""

import ast
import json
import os
import signal
import sys
from pathlib import Path

imports = [
    each
    for each in ast.parse(Path(sys.argv[1]).read_text()).body
    if isinstance(each, ast.Import | ast.ImportFrom)
]
exec(compile(ast.Module(imports, []), sys.argv[1], "exec"), {})
# The kernel then removes processes that have ended.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    folder, *arguments = json.loads(line)
    process = os.fork()
    if process == 0:
        break
    print(process, flush=True)
else:
    sys.exit()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.setsid()
os.chdir(folder)
log = os.open("watched.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for descriptor in (1, 2):
    os.dup2(log, descriptor)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.argv = ["heapwatch", *arguments]
from heapwatch.watch.command import main  # noqa: E402

main()
