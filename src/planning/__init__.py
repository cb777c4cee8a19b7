"""What a run needs of every resource, known before step 0 and before anything is allocated."""

from .plan import library_rows as library_rows
from .plan import plan_run as plan_run
from .preflight import Preflight as Preflight
from .preflight import check_run as check_run
from .preflight import preflight_of as preflight_of
from .recipe import Written as Written
from .resources import GPU as GPU
from .resources import HOST as HOST
from .resources import MemoryPlan as MemoryPlan
from .resources import Resource as Resource
from .resources import Row as Row
from .resources import plan_lines as plan_lines
from .suggestions import over_text as over_text
