"""An objective: predict the tokens of the next step.

reverie-train experiment=dreamer_catch world_model.objective=next_tokens:NextTokens
"""

from torch import Tensor, nn
from torch.nn import functional as F

from reverie import SequenceBatch


class NextTokens(nn.Module):
    """Maximizes the cosine similarity of a prediction with the encoder's tokens of the next step."""

    def __init__(self, feature_size: int, token_size: int, config, ranks) -> None:
        super().__init__()
        self.predictor = nn.Linear(feature_size, token_size)

    def loss(self, feature: Tensor, tokens: Tensor, steps: SequenceBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses (B, T). The last step and the end of an episode have a loss of zero."""
        predicted = self.predictor(feature[:, :-1]).float()
        similarity = F.cosine_similarity(predicted, tokens[:, 1:].detach().float(), dim=-1)
        continues = (~steps.is_first[:, 1:]).float()
        loss = F.pad((1 - similarity) * continues, (0, 1))
        return loss, {"similarity": (similarity * continues).mean().detach()}
