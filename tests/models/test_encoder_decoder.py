"""Inputs of the encoder and predictions of the decoder, key by key."""

import numpy as np
import pytest
import torch

from reverie.models import Decoder, Encoder, LatentState
from reverie.utils.errors import UserError
from reverie.utils.timestep import ArraySpec

from .tiny import TINY, perturb

BYTE, FLOAT = np.dtype(np.uint8), np.dtype(np.float32)
# The sorted order of these names differs from the insertion order and from images before vectors.
SPECS = {
    "wrist": ArraySpec((48, 64, 1), BYTE),
    "pose": ArraySpec((2, 2), FLOAT),
    "front": ArraySpec((48, 64, 3), BYTE),
    "speed": ArraySpec((1,), FLOAT),
}


def observation() -> dict[str, torch.Tensor]:
    return {
        key: torch.randint(256, (2, 3, *spec.shape), dtype=torch.uint8)
        if spec.is_image
        else 5 * torch.randn(2, 3, *spec.shape)
        for key, spec in SPECS.items()
    }


def states() -> LatentState:
    return LatentState(torch.randn(2, 3, TINY.deter), torch.rand(2, 3, TINY.stoch, TINY.classes))


def test_a_scalar_is_encoded_as_a_vector_of_one() -> None:
    specs = {"speed": ArraySpec((), FLOAT), "wind": ArraySpec((2,), FLOAT)}
    seen = {"speed": torch.randn(2, 3), "wind": torch.randn(2, 3, 2)}
    encoder, decoder = Encoder(specs, TINY), Decoder(specs, TINY)
    vector = torch.cat([seen["speed"].unsqueeze(-1), seen["wind"]], -1)
    torch.testing.assert_close(encoder(seen), encoder.mlp(vector.sign() * (1 + vector.abs()).log()))
    assert {key: each.shape for key, each in decoder.losses(states(), seen).items()} == dict.fromkeys(
        specs, (2, 3)
    )


def test_images_that_are_scaled_already_are_refused() -> None:
    seen = {key: values.float() for key, values in observation().items()}
    with pytest.raises(UserError, match=r"Images must be uint8 in \[0, 255\], got torch\.float32"):
        Encoder(SPECS, TINY)(seen)


def test_tokens_are_the_vectors_then_the_image_pixel_by_pixel() -> None:
    encoder = Encoder(SPECS, TINY)
    perturb(encoder)
    seen = observation()
    tokens = encoder(seen)
    assert tokens.shape == (2, 3, encoder.size) and encoder.size == TINY.units + 3 * 4 * 4 * TINY.depth
    vector = torch.cat([seen["pose"].flatten(2), seen["speed"]], -1)
    expected = encoder.mlp(vector.sign() * (1 + vector.abs()).log())
    torch.testing.assert_close(tokens[..., : TINY.units], expected)
    image = torch.cat([seen["front"], seen["wrist"]], -1)[1, 2].permute(2, 0, 1).float() / 255 - 0.5
    grid = encoder.cnn(image.unsqueeze(0))[0]
    assert grid.shape == (4 * TINY.depth, 3, 4)
    pixels = torch.stack([grid[:, row, column] for row in range(3) for column in range(4)]).flatten()
    torch.testing.assert_close(tokens[1, 2, TINY.units :], pixels, atol=1e-5, rtol=1e-4)


def test_each_record_is_encoded_on_its_own() -> None:
    encoder = Encoder(SPECS, TINY)
    seen = observation()
    changed = {key: value.clone() for key, value in seen.items()}
    for value in changed.values():
        value[1, 1] = 7
    is_same = (encoder(seen) == encoder(changed)).all(-1)
    assert is_same.tolist() == [[True, True, True], [True, False, True]]


def test_the_decoder_predicts_every_key_in_its_own_shape_and_range() -> None:
    decoder = Decoder(SPECS, TINY)
    perturb(decoder, 1.0)
    predictions = decoder(states())
    shapes = {key: tuple(value.shape) for key, value in predictions.items()}
    assert shapes == {
        "front": (2, 3, 48, 64, 3),
        "wrist": (2, 3, 48, 64, 1),
        "pose": (2, 3, 2, 2),
        "speed": (2, 3, 1),
    }
    for key in ("front", "wrist"):
        image = predictions[key].detach()
        assert 0.0 <= float(image.min()) < 0.3 and 0.7 < float(image.max()) <= 1.0


def test_an_observation_may_have_any_name() -> None:
    names = ["values", "keys", "forward", "training", "arm.pose", "arm/pose", "", "image", "mlp", "vector"]
    specs = {name: ArraySpec((index + 1,), FLOAT) for index, name in enumerate(names)}
    decoder = Decoder(specs, TINY)
    perturb(decoder)
    predictions = decoder(states())
    assert {key: tuple(value.shape) for key, value in predictions.items()} == {
        key: (2, 3, *spec.shape) for key, spec in specs.items()
    }
    tokens = Encoder(specs, TINY)({key: value.detach() for key, value in predictions.items()})
    assert tokens.shape == (2, 3, TINY.units)


def test_the_order_in_which_observations_are_named_changes_no_parameter() -> None:
    decoder, other = Decoder(SPECS, TINY), Decoder(dict(reversed(SPECS.items())), TINY)
    perturb(decoder)
    other.load_state_dict(decoder.state_dict())
    state = states()
    for key, prediction in decoder(state).items():
        assert torch.equal(other(state)[key], prediction)


def test_decoder_losses_are_squared_errors_summed_over_each_observation() -> None:
    decoder = Decoder(SPECS, TINY)
    seen, state = observation(), states()
    losses, predictions = decoder.losses(state, seen), decoder(state)
    assert losses.keys() == SPECS.keys()
    image = (predictions["wrist"] - seen["wrist"] / 255).square().sum((2, 3, 4))
    torch.testing.assert_close(losses["wrist"], image)
    target = seen["pose"].sign() * (1 + seen["pose"].abs()).log()
    torch.testing.assert_close(losses["pose"], (predictions["pose"] - target).square().sum((2, 3)))
    target = seen["speed"].sign() * (1 + seen["speed"].abs()).log()
    torch.testing.assert_close(losses["speed"], (predictions["speed"] - target).square()[..., 0])


def test_perfect_predictions_turn_back_into_the_observations() -> None:
    decoder = Decoder(SPECS, TINY)
    seen = observation()
    perfect = {
        key: value / 255 if SPECS[key].is_image else value.sign() * value.abs().log1p()
        for key, value in seen.items()
    }
    raw = decoder.to_raw(perfect)
    for key in ("front", "wrist"):
        assert torch.equal(raw[key], seen[key])
    torch.testing.assert_close(raw["pose"], seen["pose"])


def test_the_image_is_painted_from_both_parts_of_the_state() -> None:
    decoder = Decoder(SPECS, TINY)
    state = states()
    base = decoder(state)["front"]
    deter = LatentState(state.deter + 1.0, state.stoch)
    stoch = LatentState(state.deter, state.stoch.roll(1, -1))
    for other in (deter, stoch):
        assert float((decoder(other)["front"] - base).detach().abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(50, 64, 3)], "50 x 64"),
        ([(32, 32, 3)], "32 x 32"),
        ([(64, 272, 3)], "64 x 272"),
        ([(64, 64, 3), (48, 64, 3)], "same size"),
    ],
)
def test_images_that_cannot_be_halved_four_times_are_refused(
    shapes: list[tuple[int, ...]], message: str
) -> None:
    specs = {f"image{index}": ArraySpec(shape, BYTE) for index, shape in enumerate(shapes)}
    with pytest.raises(UserError, match=message):
        Encoder(specs, TINY)
