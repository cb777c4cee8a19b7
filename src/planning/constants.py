"""Constants of memory plans. Each states the measurement behind it or is marked as unmeasured."""

HOST_SHARE = 0.8
"""Fraction of the host's memory, or of the control group's limit, that a run may plan to use."""

GRAPH_BYTES_PER_OPERATOR = 265
"""Host memory per operator in an autograd graph, excluding tensors. Measured on a CPU in six configurations:
258 to 266 bytes."""

CPU_WORKSPACE_BYTES = 100_000_000
"""Workspace of kernels, and freed memory that glibc caches. Measured as peak resident memory minus peak
memory in use, in five configurations with updates of 75 to 724 MB: -7 to 63 MB, independent of the size. In
bfloat16, with a cached heap, a Pong run exceeded a plan with 64 MB by 1 MB."""

FIRST_USE_BYTES = 30_000_000
"""Memory that libraries (oneDNN, TensorBoard, the video encoder) allocate permanently on first use. Measured:
22 to 33 MB."""

LIBRARY_ADDRESS_BYTES = 100_000_000
"""Address space of the libraries that a run loads after planning. Measured with Catch: 81 MB of mapped
files."""

CUDA_ADDRESS_BYTES = 20_000_000_000
"""Address space that CUDA reserves but mostly does not use. Unmeasured."""

BFLOAT16_KERNEL_BYTES = 60_000_000
"""oneDNN's generated kernels and workspace for bfloat16 products on a CPU. Measured as additional memory in
use compared with float32: 40 to 45 MB after the first update in five configurations, constant afterwards, and
56 MB at the end of a Pong run."""

COMPILER_BYTES = 190_000_000
"""Memory of torch's compiler after compiling acting and an update (compile=inductor). Measured as the
difference in resident memory: 94 MB with Catch, at most 181 MB with Pong."""

CUDA_COMPILER_BYTES = 480_000_000
"""Memory of torch's compiler on CUDA. Measured with Pong on an H100: two runs that compiled used 290 MB more
resident memory than a run with a warm compiler cache."""

MIRROR_BYTES = 70_000_000
"""Memory used to copy checkpoints to a remote folder. Measured with s3fs and files of 200 MB as the
difference in resident memory: 65 MB, with a peak of 68 MB."""

ATARI_ENVIRONMENT_BYTES = 1_000_000
"""Memory of one emulator in ale-py's pool. Measured: 0.85 MB with 16 emulators."""

SIMULATOR_BYTES = 1_100_000
"""Memory of a MuJoCo environment in the run's process. Measured with 20 environments of Swimmer-v5 and
HalfCheetah-v5. Classic control uses less."""

BATCH_COPIES = 10
"""Memory of a vector environment and of acting on its batch, in multiples of the batch's observations.
Measured on a CPU with 1,024 games of Catch and the networks of dreamer_catch: 125 MB, 9.9 times 12.6 MB."""

CONTROL_BYTES = 30_000_000
"""A task of the control suite. Measured with walker_walk: 24 to 27 MB. dog needs 100 MB."""

DRAWN_CONTROL_BYTES = 130_000_000
"""A task of the control suite with pixels. Measured with walker_walk and quadruped_run, drawn by Mesa on a
CPU: 87 to 138 MB. A GPU draws into its own memory."""

CONTROL_SUITE_BYTES = 125_000_000
"""The libraries of the control suite in a separate process. Measured: 124 MB."""

WORKER_BYTES = 30_000_000
"""Memory of an environment's process (env.vectorization=async), excluding shared pages and the environment
itself. Measured with CartPole."""

COLLECTOR_BYTES = 330_000_000
"""Memory of a collector process (`collect.collectors`) with torch and Catch, without networks. Measured: 319
MB (PSS)."""

RAY_SERVICES_BYTES = 400_000_000
"""Memory of a Ray cluster's head, node, agents and monitors, without workers. Measured: 366 to 371 MB
(PSS)."""

CUDA_CONTEXT_BYTES = 880_000_000
"""Memory of a CUDA context with its kernels and graphs. Measured once, on an H100 in a compiled Pong run:
6,895 MiB in use according to nvidia-smi, including 6,354 MB reserved by the allocator."""

CUDA_SLACK_SHARE = 0.45
"""Memory that the caching allocator reserves beyond tensors, plus the workspace of cuDNN and cuBLAS, as a
fraction of the tensors excluding the replay. Measured in eight compiled Pong runs on an H100: 28 to 33 %, and
41 % if the warm-up update also has a graph."""

CUDA_GRAPH_SLACK_SHARE = 0.75
"""Like `CUDA_SLACK_SHARE`, but for eager kernels in a graph (compile=graph). Measured in a Pong run: 71 %."""

CUDA_HOST_BYTES = 1_400_000_000
"""Host memory of the CUDA libraries: 600 MB for a context, and the rest for the first update. Measured on an
H100 as memory in use beyond components and startup: 1,387 MB in a captured Pong run, 1,306 to 1,320 MB in
three runs with a warm compiler cache."""

LOG_LINE_BYTES = 8_000
"""Disk space that a log interval uses in metrics.jsonl, train.log and TensorBoard. Measured with Pong: 6
kB."""

VIDEO_BYTES = 1_000_000
"""Disk space of an episode and an open-loop animation, as files and in TensorBoard. Measured with Pong: 0.5
MB."""

SNAPSHOT_BYTES = 10_000_000
"""Size of a CUDA memory snapshot. Measured on an H100: 0.06 MB in a Pong run, 28 MB with 415,000 leaked
blocks."""

SHARED_FILE_BYTES = 5_000
"""Header of a replay file and the unused rest of its last disk block. Measured for the header: 0.7 to 1
kB."""

MANIFEST_LINE_BYTES = 350
"""Size of a replay file's entries in a checkpoint's manifest and index. Measured: 0.28 kB."""

CHECKPOINT_BYTES = 2_000_000
"""A checkpoint's tensor names and shapes, counters, random generators, and actions of open episodes: usually
0.1 MB, but 1.9 MB for actions of 18 numbers over 27,000 steps."""
