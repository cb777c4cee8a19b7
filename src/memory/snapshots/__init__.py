"""CUDA memory snapshots: recorded in training, read without trust, compared, judged and shown."""

from .analysis import Analysis as Analysis
from .analysis import as_json as as_json
from .compare import SiteChange as SiteChange
from .compare import compare as compare
from .correlate import Correlation as Correlation
from .correlate import correlate as correlate
from .growth import Growth as Growth
from .growth import find_snapshots as find_snapshots
from .growth import measure_growth as measure_growth
from .growth import read_series as read_series
from .reader import load as load
from .recorder import SnapshotRecorder as SnapshotRecorder
from .schema import Block as Block
from .schema import Frame as Frame
from .schema import Segment as Segment
from .schema import Snapshot as Snapshot
from .schema import parse as parse
from .schema import read_snapshot as read_snapshot
from .summary import Summary as Summary
from .summary import summarize as summarize
