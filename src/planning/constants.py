"""What a plan cannot count: each number with what it was measured on, or the word unmeasured."""

HOST_SHARE = 0.8
"""Share of the host's memory, or of the control group's limit, that a run may plan for."""

GRAPH_BYTES_PER_OPERATOR = 265
"""Host memory of an autograd graph without its tensors, for each operator of an update. Measured on a CPU
over six configurations: 258 to 266 bytes."""

CPU_WORKSPACE_BYTES = 100_000_000
"""Workspace of kernels, and freed memory that glibc keeps. Measured as the peak of resident memory less the
peak in use, in five configurations whose updates hold 75 to 724 MB: -7 to 63 MB, no more for the larger. In
bfloat16, with a heap that is kept, a run of Pong was 1 MB over a plan with 64 MB."""

FIRST_USE_BYTES = 30_000_000
"""What libraries allocate when they are first used, and keep: oneDNN, TensorBoard, the video encoder.
Measured 22 to 33 MB."""

LIBRARY_ADDRESS_BYTES = 100_000_000
"""Address space of libraries that a run loads after its plan. Measured with Catch: 81 MB of mapped files."""

CUDA_ADDRESS_BYTES = 20_000_000_000
"""Address space that CUDA reserves, most of it never used; unmeasured."""

BFLOAT16_KERNEL_BYTES = 60_000_000
"""What oneDNN keeps once a CPU has multiplied in bfloat16: kernels made at run time, a workspace. Measured in
use beyond float32: 40 to 45 MB after the first update of five configurations, constant then; 56 MB at the end
of a run of Pong."""

COMPILER_BYTES = 190_000_000
"""torch's compiler, once it has compiled acting and an update (compile=inductor). Measured as the difference
in resident memory: 94 MB with Catch, at most 181 MB with Pong."""

CUDA_COMPILER_BYTES = 480_000_000
"""The same on CUDA. Measured with Pong on an H100: two runs that compiled held 290 MB more of resident memory
than one that found all of it compiled."""

MIRROR_BYTES = 70_000_000
"""What copying checkpoints to a remote adds. Measured with s3fs and files of 200 MB as the difference in
resident memory: 65 MB, 68 MB at its peak."""

ATARI_ENVIRONMENT_BYTES = 1_000_000
"""One emulator of ale-py's pool; measured 0.85 MB with 16 of them."""

SIMULATOR_BYTES = 1_100_000
"""One MuJoCo environment in the process of the run, measured with 20 of Swimmer-v5 and HalfCheetah-v5;
classic control takes less."""

WORKER_BYTES = 30_000_000
"""One process of an environment (env.vectorization=async), shared pages apart; measured with CartPole. What
the environment itself holds comes on top."""

COLLECTOR_BYTES = 330_000_000
"""One process of `collect.collectors` with torch and Catch, networks apart; measured 319 MB as PSS."""

RAY_SERVICES_BYTES = 400_000_000
"""The processes of a Ray cluster without workers: head, node, agents, monitors; 366 to 371 MB as PSS."""

CUDA_CONTEXT_BYTES = 880_000_000
"""A CUDA context with its kernels and graphs. Measured once, on an H100 in a compiled run of Pong: 6,895 MiB
in use by nvidia-smi's account, of which the allocator had reserved 6,354 MB."""

CUDA_SLACK_SHARE = 0.45
"""What the caching allocator reserves beyond the tensors, and the workspace of cuDNN and cuBLAS, as a share
of the tensors without the replay. Measured in eight compiled runs of Pong on an H100: 28 to 33 %, and 41 %
where the update of the warm-up has a graph, too."""

CUDA_GRAPH_SLACK_SHARE = 0.75
"""The same with kernels as written in a graph (compile=graph): 71 % in a run of Pong."""

CUDA_HOST_BYTES = 1_400_000_000
"""Host memory of the CUDA libraries: 600 MB with a context, the rest with the first update. Measured on an
H100 in use beyond parts and start-up: 1,387 MB in a captured run of Pong, 1,306 to 1,320 MB in three that
found their code compiled."""

LOG_LINE_BYTES = 8_000
"""Disk space of a log interval in metrics.jsonl, train.log and TensorBoard; measured 6 kB on Pong."""

VIDEO_BYTES = 1_000_000
"""Disk space of an episode and an open-loop animation, as files and in TensorBoard; on Pong 0.5 MB."""

SNAPSHOT_BYTES = 10_000_000
"""One CUDA memory snapshot. Measured on an H100: 0.06 MB in a run of Pong, 28 MB where a leak holds 415,000
blocks."""

SHARED_FILE_BYTES = 5_000
"""Header of a file of the replay, and the rest of its last disk block; the header is measured 0.7 to 1 kB."""

MANIFEST_LINE_BYTES = 350
"""What one file of the replay takes in the manifest and the index of a checkpoint; measured 0.28 kB."""

CHECKPOINT_BYTES = 2_000_000
"""Names and shapes of a checkpoint's tensors, counters, generators, and the actions of open episodes: mostly
0.1 MB, an action of 18 numbers at each of 27,000 steps takes 1.9 MB."""
