"""Import and export episodes: Reverie's format, danijar/dreamerv3 and Minari.

Files may be untrusted. Code in them is never executed, and sizes are checked before memory is allocated.
"""

from .episode import MOST_CHOICES as MOST_CHOICES
from .episode import EpisodeSpec as EpisodeSpec
from .episode import RawEpisode as RawEpisode
from .episode import model_actions as model_actions
from .episode import spec_of as spec_of
from .episode import to_records as to_records
from .formats import CONVERTER as CONVERTER
from .formats import Episodes as Episodes
from .formats import Format as Format
from .formats import find_action as find_action
from .formats import find_episodes as find_episodes
from .formats import require_new as require_new
from .formats import write_episodes as write_episodes
from .own import append as append
from .prefill import prefill as prefill
