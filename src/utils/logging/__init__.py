"""What a run writes about itself: metrics, images and log lines."""

from .console import CONSOLE as CONSOLE
from .console import configure_logging as configure_logging
from .json_lines import JsonLines as JsonLines
from .json_lines import malformed_line_error as malformed_line_error
from .json_lines import read_lines as read_lines
from .json_lines import whole_lines as whole_lines
from .wandb import WandbMode as WandbMode
from .wandb import require_wandb as require_wandb
from .writer import MetricsWriter as MetricsWriter
