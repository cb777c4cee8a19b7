"""Literal conversions between Gymnasium's spaces and the model's inputs and outputs."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.envs.backend import EnvironmentFailed
from reverie.envs.spaces import (
    action_spec,
    convert_action,
    convert_observation,
    full_range,
    notices,
    observation_space,
)
from reverie.utils.errors import UserError


def bytes_box(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def float_box(low: float, high: float, *shape: int, dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def test_a_lone_observation_is_named_by_its_kind() -> None:
    assert list(observation_space(bytes_box(10, 10, 3), 64)) == ["image"]
    assert list(observation_space(float_box(-1, 1, 3), 64)) == ["vector"]
    assert list(observation_space(bytes_box(128), 64)) == ["vector"]


@pytest.mark.parametrize(("given", "delivered"), [(np.float16, np.float16), (np.float32, np.float32),
                                                  (np.float64, np.float32)])  # fmt: skip
def test_floats_keep_their_type_up_to_four_bytes(given: type, delivered: type) -> None:
    space = float_box(-9, 9, 2, dtype=given)
    vector = convert_observation(space, np.array([0.5, -2], given), 64)["vector"]
    assert vector.dtype == observation_space(space, 64)["vector"].dtype == delivered
    assert vector.tolist() == [0.5, -2.0]


def test_a_choice_becomes_one_hot_counted_from_the_start_of_its_space() -> None:
    assert convert_observation(spaces.Discrete(4, start=2), 3, 64)["vector"].tolist() == [0, 1, 0, 0]


def test_a_dict_keeps_its_keys() -> None:
    space = spaces.Dict(a=bytes_box(4, 4, 3), b=float_box(0, 1, 2, 2), c=spaces.Discrete(2))
    value = {"a": np.zeros((4, 4, 3), np.uint8), "b": np.eye(2, dtype=np.float32), "c": 1}
    converted = convert_observation(space, value, 8)
    assert {key: array.shape for key, array in converted.items()} == {"a": (8, 8, 3), "b": (4,), "c": (2,)}
    assert observation_space(space, 8).contains(converted)


def test_an_image_of_the_right_size_is_delivered_byte_for_byte() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    np.testing.assert_array_equal(convert_observation(bytes_box(64, 64, 3), image, 64)["image"], image)


@pytest.mark.parametrize("shape", [(6, 6), (6, 6, 1)])
def test_a_grey_image_becomes_three_equal_channels(shape: tuple[int, ...]) -> None:
    image = np.arange(36, dtype=np.uint8).reshape(shape)
    converted = convert_observation(bytes_box(*shape), image, 6)["image"]
    for channel in range(3):
        np.testing.assert_array_equal(converted[:, :, channel], image.reshape(6, 6))


def test_one_bright_pixel_survives_shrinking_as_the_mean_of_its_block() -> None:
    for row, column in [(0, 0), (101, 57), (127, 127)]:
        image = np.zeros((256, 128, 3), np.uint8)
        image[row, column] = 240
        small = convert_observation(bytes_box(256, 128, 3), image, 64)["image"]
        # The value 240 is averaged over 4 * 2 pixels.
        assert small[row // 4, column // 2].tolist() == [30, 30, 30]
        assert small.sum() == 90


@pytest.mark.parametrize(
    ("low", "high", "dtype", "given", "delivered"),
    [
        (0, 1, np.float32, [0, 0.2, 0.5, 1], [0, 51, 128, 255]),
        (0, 255, np.float64, [0, 51, 127.6, 255], [0, 51, 128, 255]),
        (-1, 1, np.float32, [-1, -0.6, 0.004, 1], [0, 51, 128, 255]),
        (0, 255, np.int64, [0, 51, 128, 255], [0, 51, 128, 255]),
        (0, 255, np.uint8, [0, 51, 128, 255], [0, 51, 128, 255]),
        (0, 1, np.uint8, [0, 1, 1, 0], [0, 255, 255, 0]),
        (0, 10, np.uint8, [0, 2, 5, 10], [0, 51, 128, 255]),
        (100, 110, np.uint8, [100, 102, 105, 110], [0, 51, 128, 255]),
        (0, 1, np.int8, [0, 1, 1, 0], [0, 255, 255, 0]),
    ],
)
@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 1), (64, 64, 3), (1, 64, 64), (3, 64, 64)])
def test_pictures_of_other_numbers_and_with_channels_first_are_images(
    shape: tuple[int, ...], low: float, high: float, dtype: type, given: list[float], delivered: list[int]
) -> None:
    space = spaces.Box(low, high, shape, dtype)
    # The rows repeat `given`.
    picture = np.resize(np.array(given, dtype), (64, 64))
    channels_first = len(shape) == 3 and shape[0] < 64
    value = picture[None] if channels_first else picture[..., None] if len(shape) == 3 else picture
    value = np.ascontiguousarray(np.broadcast_to(value, shape))
    assert space.contains(value)
    image = convert_observation(space, value, 64)["image"]
    assert (image.shape, image.dtype) == ((64, 64, 3), np.uint8)
    np.testing.assert_array_equal(
        image, np.resize(np.array(delivered, np.uint8), (64, 64))[..., None].repeat(3, 2)
    )
    assert bool(notices(space)) == (dtype is not np.uint8 or (low, high) != (0, 255) or channels_first)


def test_the_conversion_of_an_image_is_reported() -> None:
    first = spaces.Dict(camera=float_box(0, 1, 3, 64, 64), pose=float_box(-1, 1, 3), map=bytes_box(64, 64))
    assert notices(first) == (
        "`camera` Box(0.0, 1.0, (3, 64, 64), float32) is treated as an image with its channels moved to the "
        "end and its values from 0 to 1 scaled to bytes 0 to 255",
    )
    stack = float_box(0, 1, 4, 84, 84)
    assert notices(stack) == (f"{stack} is treated as 28,224 numbers, not as an image",)


def test_bytes_whose_bounds_differ_by_pixel_are_scaled_by_the_outermost_bounds() -> None:
    high = np.full((64, 64), 4, np.uint8)
    high[0, 0] = 5
    space = spaces.Box(np.zeros_like(high), high, dtype=np.uint8)
    assert convert_observation(space, high, 64)["image"][..., 0].tolist() == (high * 51).tolist()
    constant = spaces.Box(7, 7, (64, 64), np.uint8)
    assert convert_observation(constant, np.full((64, 64), 7, np.uint8), 64)["image"].max() == 7


def test_bytes_out_of_their_bounds_are_a_failure_of_the_environment() -> None:
    with pytest.raises(EnvironmentFailed, match="values from 2 to 2, but its space has the bounds 0 to 1"):
        convert_observation(spaces.Box(0, 1, (64, 64), np.uint8), np.full((64, 64), 2, np.uint8), 64)


def test_the_full_range_leaves_bytes_as_they_are_and_keeps_the_order_of_keys() -> None:
    part = spaces.Box(0, 1, (64, 64), np.uint8)
    space = full_range(spaces.Dict([("z", part), ("a", float_box(0, 1, 64, 64))]))
    assert isinstance(space, spaces.Dict) and list(space.spaces) == ["z", "a"]
    ones = np.ones((64, 64), np.uint8)
    seen = convert_observation(space, {"z": ones, "a": ones}, 64)
    assert (seen["z"].max(), seen["a"].max()) == (1, 255)


GRID = np.array([[2, 0, 1], [5, 5, 5]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
@pytest.mark.parametrize("high", [5, 100])
def test_a_small_grid_of_whole_numbers_is_pointed_out_and_its_one_hot_form_is_taken(
    dtype: type, high: int
) -> None:
    [notice] = notices(spaces.Box(0, high, (2, 3), dtype))
    code, box = "np.eye(n, dtype=np.float32)[grid]", "Box(0, 1, (2, 3, n), np.float32)"
    assert notice.endswith(f"one-hot encode them: {code}, declared as {box}")
    names = {"np": np, "Box": spaces.Box, "grid": GRID.astype(dtype), "n": 6}
    encoded, space = eval(code, names), eval(box, names)
    assert space.contains(encoded)
    vector = convert_observation(space, encoded, 64)["vector"]
    assert vector.reshape(2, 3, 6).argmax(2).tolist() == GRID.tolist()


def test_pictures_of_bytes_and_small_vectors_are_no_grids() -> None:
    for space in (bytes_box(64, 64, 3), bytes_box(128), spaces.Box(0, 9, (4,), np.int64)):
        assert notices(space) == ()


@pytest.mark.parametrize(
    "made",
    [
        lambda values: torch.tensor(values, dtype=torch.float64),
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: torch.tensor(values, requires_grad=True) * 1,
        lambda values: np.array(values, np.float32),
    ],
)
def test_a_tensor_is_taken_as_the_same_numbers_in_an_array(made: Any) -> None:
    space = spaces.Dict(pose=float_box(-9, 9, 2), mode=spaces.Discrete(3), camera=float_box(0, 1, 64, 64))
    value = {"pose": made([0.5, -2.0]), "mode": made([1.0]), "camera": made([[1.0] * 64] * 64)}
    seen = convert_observation(space, value, 64)
    assert seen["pose"].tolist() == [0.5, -2] and seen["mode"].tolist() == [0, 1, 0]
    assert seen["camera"].min() == 255


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_an_observation_is_finite_in_the_dtype_that_is_stored(dtype: type) -> None:
    space = float_box(-np.inf, np.inf, 1, dtype=dtype)
    most = np.array([np.finfo(dtype).max])
    assert convert_observation(space, most, 64)["vector"] == most
    with pytest.raises(EnvironmentFailed, match="values that are not finite"):
        convert_observation(space, most.astype(np.float64) * 2, 64)


@pytest.mark.parametrize(
    "space",
    [
        # This is a board.
        float_box(0, 1, 8, 8, 3),
        float_box(0, 1, 19, 19),
        float_box(-np.inf, np.inf, 64, 64, 3),
        float_box(-3e38, 3e38, 64, 64, 3),
        spaces.Box(np.zeros((64, 64)), np.arange(1, 4097).reshape(64, 64), dtype=np.float64),
        float_box(0, 1, 64, 64, 4),
    ],
)
def test_numbers_that_need_not_be_a_picture_stay_numbers(space: spaces.Box) -> None:
    assert list(observation_space(space, 64)) == ["vector"]


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (float_box(-1, 1, 3), np.zeros(4), r"`vector` has the shape \(4,\), but its space has \(3,\)"),
        (bytes_box(64, 64, 3), np.zeros((64, 64), np.uint8), r"`image` has the shape \(64, 64\)"),
        (bytes_box(64, 64, 3), np.zeros((3, 64, 64), np.uint8), r"`image` has the shape \(3, 64, 64\)"),
        (bytes_box(64, 64), np.zeros((64, 64)), "`image` has the dtype float64, but its space has uint8"),
        (float_box(0, 1, 64, 64), np.full((64, 64), 9.0), "from 9 to 9, but its space has the bounds 0 to 1"),
        (float_box(0, 1, 64, 64), np.full((64, 64), np.nan), "values from nan to nan"),
        (spaces.Dict(a=float_box(0, 1, 2)), {"a": np.zeros(3)}, r"`a` has the shape \(3,\)"),
        (float_box(-1, 1, 2), np.array([0, np.nan]), "`vector` has values that are not finite"),
        (spaces.Discrete(3, start=1), 0, r"is 0, which is not in Discrete\(3, start=1\)"),
    ],
)
def test_an_observation_that_its_space_does_not_have_is_a_failure_of_its_environment(
    space: spaces.Space, value: Any, message: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        convert_observation(space, value, 64)


@pytest.mark.parametrize(
    "space",
    [
        bytes_box(4, 64, 64, 3),
        bytes_box(64, 64, 4),
        spaces.MultiDiscrete([2, 3]),
        spaces.Text(4),
        spaces.Dict(inner=spaces.Dict(a=spaces.Discrete(2))),
    ],
)
def test_other_observations_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"has an observation `(vector|inner)` in"):
        observation_space(space, 64)


MASK, CAMERA = spaces.MultiBinary(3), bytes_box(64, 64, 3)
NO_NUMBERS = (bytes_box(0), bytes_box(0, 64, 3), float_box(-1, 1, 0), float_box(-1, 1, 2, 0))
NEVER_FLAT = (spaces.Sequence(MASK), spaces.Dict(a=spaces.Graph(MASK, None)))


@pytest.mark.parametrize("space", [*NO_NUMBERS, *NEVER_FLAT])
def test_without_numbers_or_a_way_to_flatten_it_an_observation_is_refused(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"Declare it as a Box with at least one number\.$"):
        observation_space(space, 64)


@pytest.mark.parametrize("part", [MASK, spaces.MultiDiscrete([2, 3]), spaces.Text(9), float_box(0, 1, 0)])
def test_a_part_that_cannot_be_used_is_left_out_by_the_suggestion(part: spaces.Space) -> None:
    space = spaces.Dict(camera=CAMERA, mission=part, speed=float_box(0, 1, 1))
    with pytest.raises(UserError, match="has an observation `mission` in") as refused:
        observation_space(space, 64)
    suggestion = str(refused.value).rpartition("Omit it: ")[2].removesuffix(".")

    class World(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

    wrapped = eval(suggestion, {"gymnasium": gymnasium, "env": World()})
    assert observation_space(wrapped.observation_space, 64).keys() == {"camera", "speed"}


@pytest.mark.parametrize(
    "space", [MASK, spaces.MultiDiscrete([2, 3]), spaces.Text(9), spaces.Dict(mask=MASK)]
)
def test_a_lone_part_of_fixed_length_is_flattened_by_the_suggestion(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"Wrap it: gymnasium.wrappers.FlattenObservation\(env\)\.$"):
        observation_space(space, 64)
    assert observation_space(spaces.flatten_space(space), 64).keys() == {"vector"}


@pytest.mark.parametrize("space", [float_box(-1, 1, 0), float_box(-1, 1, 3, 0)])
def test_actions_without_numbers_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"an empty space of shape .*\. Declare an action space with"):
        action_spec(space)


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 9, (2,), np.int64), spaces.Tuple([spaces.Discrete(2)]), spaces.Text(3)]
)
def test_other_actions_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UserError, match="has actions in"):
        action_spec(space)


def test_one_hot_is_the_choice_counted_from_the_start_of_the_space() -> None:
    assert convert_action(spaces.Discrete(3), np.array([0, 0, 1], np.float32)) == 2
    assert convert_action(spaces.Discrete(3, start=-1), np.array([1, 0, 0], np.float32)) == -1


@pytest.mark.parametrize(
    ("space", "parts", "action", "chosen"),
    [
        (spaces.MultiDiscrete([2, 3]), (2, 3), [0, 1, 0, 0, 1], [1, 2]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), (2, 3), [1, 0, 0, 1, 0], [5, 0]),
        (
            spaces.MultiDiscrete(np.array([[2, 1], [2, 2]])),
            (2, 1, 2, 2),
            [0, 1, 1, 0, 1, 1, 0],
            [[1, 0], [1, 0]],
        ),
        (spaces.MultiBinary(3), (2, 2, 2), [0, 1, 1, 0, 0, 1], [1, 0, 1]),
        (spaces.MultiBinary([1, 2]), (2, 2), [0, 1, 1, 0], [[1, 0]]),
        (spaces.MultiDiscrete([4]), (), [0, 0, 1, 0], [2]),
    ],
)
def test_one_hot_blocks_are_a_choice_in_each_part(
    space: spaces.Space, parts: tuple[int, ...], action: list[int], chosen: list[Any]
) -> None:
    spec = action_spec(space)
    assert (spec.size, spec.is_discrete, spec.parts) == (len(action), True, parts)
    value = convert_action(space, np.array(action, np.float32))
    assert value.tolist() == chosen and space.contains(value)


def test_numbers_are_clipped_and_spread_over_the_bounds() -> None:
    pendulum = float_box(-2, 2, 1)
    actions = [convert_action(pendulum, np.array([x], np.float32)).item() for x in (-7, -1, 0, 0.5, 1, 7)]
    assert actions == [-2.0, -2.0, 0.0, 1.0, 2.0, 2.0]


def test_a_dimension_without_bounds_takes_the_number_in_minus_one_to_one_within_the_bound_that_it_has() -> (
    None
):
    low, high = np.array([0, -np.inf, 0, -np.inf]), np.array([10, np.inf, np.inf, -3])
    space = spaces.Box(low, high, dtype=np.float64)
    action = convert_action(space, np.array([-1, 3, -0.5, 0.5], np.float32))
    assert action.tolist() == [0.0, 1.0, 0.0, -3.0]
    assert action.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_bounds_do_not_overflow(dtype: type) -> None:
    most = np.finfo(dtype).max
    space = spaces.Box(-most, most, (3,), dtype)
    assert convert_action(space, np.array([-1, 0, 1], np.float32)).tolist() == [-most, 0, most]


def test_an_action_gets_the_shape_of_its_space() -> None:
    space = float_box(-1, 1, 2, 2)
    assert action_spec(space).size == 4
    assert convert_action(space, np.array([-1, 0, 0.5, 1], np.float32)).tolist() == [[-1, 0], [0.5, 1]]
