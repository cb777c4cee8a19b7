"""What a run will need of every resource, known before step 0 and before anything is allocated."""

from .changes import Compose as Compose
from .plan import plan_run as plan_run
from .refusal import over_text as over_text
from .refusal import require_fit as require_fit
from .rehearsal import Rehearsed as Rehearsed
from .rehearsal import rehearse as rehearse
from .resources import DISK as DISK
from .resources import GPU as GPU
from .resources import HOST as HOST
from .resources import MemoryPlan as MemoryPlan
from .resources import Resource as Resource
from .resources import Row as Row
from .table import plan_lines as plan_lines
