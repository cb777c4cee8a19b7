# bash stamped.sh NAME COMMAND...: stamp and time a command on core 0
name=$1; shift
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
{ time timeout 550 taskset -c 0 "$@"; } 2>&1 | python3 stamp.py > logs/$name.log
