# Two network namespaces as hosts; `host.sh <namespace> <is_host> <run_dir> <interface>` starts one of them, with ADDR=<its address>.
ip netns add h1 && ip netns add h2
ip link add v1 type veth peer name v2 && ip link set v1 netns h1 && ip link set v2 netns h2
ip netns exec h1 ip addr add 10.77.0.1/24 dev v1 && ip netns exec h2 ip addr add 10.77.0.2/24 dev v2
for each in 1 2; do ip netns exec h$each ip link set v$each up; ip netns exec h$each ip link set lo up; done
kill -9 $(ip netns pids h2) # the second host dies
