"""What a run writes about itself: metrics, images and log lines."""

from .console import LEARNING as LEARNING
from .console import Heartbeat as Heartbeat
from .console import Progress as Progress
from .console import ProgressMode as ProgressMode
from .console import configure_logging as configure_logging
from .console import shows_bar as shows_bar
from .console import still as still
from .json_lines import JsonLines as JsonLines
from .json_lines import malformed_line_error as malformed_line_error
from .json_lines import read_lines as read_lines
from .json_lines import stored_log as stored_log
from .writer import MetricsWriter as MetricsWriter
from .writer import OnLine as OnLine
from .writer import WandbMode as WandbMode
from .writer import require_wandb as require_wandb
