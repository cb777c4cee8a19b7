from .evaluation import evaluate as evaluate
from .pong.probe import play as play
from .pong.probe import probe_episodes as probe_episodes
from .recipes import recipe_of as recipe_of
from .reports import no_pictures as no_pictures
from .reports import write_video as write_video
from .trained import load_agent as load_agent
