from .evaluation import evaluate as evaluate
from .recipes import recipe_of as recipe_of
from .reports import no_pictures as no_pictures
from .reports import write_video as write_video
from .trained import load_agent as load_agent
