from heapwatch import Watch as Watch
from heapwatch import budget as budget
from heapwatch import graph_holders as graph_holders
from heapwatch import no_growth as no_growth
from heapwatch import track as track
from heapwatch.counters.cuda import gpu_memory_stats as gpu_memory_stats
from heapwatch.counters.process import process_rss_mb as process_rss_mb
