"""The catalogue of the demo shop: outdoor gear in 20 categories and 120 product lines, in three colours and two sizes.

It is this small so that a model can learn every item from a month of clicks in two minutes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

COLOURS = {"blue": "BLU", "black": "BLK", "red": "RED"}
SHOE = ("38", "42")
WEAR = ("M", "L")
PACK = ("25 L", "40 L")
BOTTLE = ("0.5 L", "1 L")
PEOPLE = ("2 persons", "4 persons")
LYING = ("regular", "long")
LENGTH = ("110 cm", "120 cm")
BUNDLE = ("single", "pair")

# code, category, sizes, six product lines
SHELVES = (
    ("RUN", "Running shoes", SHOE,
     "Trail Running Shoe|Road Running Shoe|Racing Flat|Fell Running Shoe|Winter Running Shoe|Recovery Clog"),
    ("BOO", "Hiking boots", SHOE,
     "Leather Hiking Boot|Light Hiking Boot|Mountain Boot|Approach Shoe|Winter Boot|Hut Slipper"),
    ("SAN", "Sandals", SHOE,
     "Trekking Sandal|Water Shoe|Closed-Toe Sandal|Camp Sandal|Canyon Shoe|Barefoot Sandal"),
    ("JAC", "Jackets", WEAR,
     "Rain Jacket|Down Jacket|Softshell Jacket|Wind Jacket|Insulated Parka|Running Jacket"),
    ("FLE", "Fleece", WEAR,
     "Fleece Jacket|Fleece Vest|Grid Fleece Hoodie|Sherpa Pullover|Stretch Fleece|Fleece Half-Zip"),
    ("BAS", "Base layers", WEAR,
     "Merino Shirt|Merino Long Sleeve|Thermal Top|Thermal Tights|Mesh Base Layer|Merino Boxer"),
    ("TRO", "Trousers", WEAR,
     "Hiking Trousers|Zip-Off Trousers|Rain Trousers|Climbing Trousers|Softshell Trousers|Running Tights"),
    ("SHO", "Shorts", WEAR,
     "Running Shorts|Hiking Shorts|Climbing Shorts|Swim Shorts|Trail Skirt|Cycling Shorts"),
    ("SOC", "Socks", SHOE,
     "Hiking Sock|Running Sock|Merino Liner Sock|Ski Sock|Compression Sock|Waterproof Sock"),
    ("GLO", "Gloves", WEAR,
     "Touchscreen Glove|Down Mitten|Waterproof Glove|Liner Glove|Climbing Glove|Running Glove"),
    ("HAT", "Hats", WEAR,
     "Wool Beanie|Sun Hat|Running Cap|Rain Hat|Neck Gaiter|Headband"),
    ("BAC", "Backpacks", PACK,
     "Day Pack|Trekking Backpack|Running Vest|Alpine Pack|Roll-Top Pack|Commuter Pack"),
    ("BAG", "Bags", PACK,
     "Duffel Bag|Dry Bag|Travel Bag|Packing Cube|Rope Bag|Hip Pack"),
    ("TEN", "Tents", PEOPLE,
     "Dome Tent|Tunnel Tent|Ultralight Tent|Tarp|Family Tent|Geodesic Tent"),
    ("SLE", "Sleeping", LYING,
     "Down Sleeping Bag|Summer Sleeping Bag|Sleeping Mat|Inflatable Mat|Camp Quilt|Hammock"),
    ("STO", "Cooking", PEOPLE,
     "Gas Stove|Titanium Pot|Cook Set|Camp Kettle|Wood Stove|Mess Kit"),
    ("BOT", "Bottles", BOTTLE,
     "Insulated Bottle|Steel Bottle|Filter Bottle|Soft Flask|Thermos|Water Bladder"),
    ("POL", "Poles", LENGTH,
     "Trekking Pole|Folding Pole|Running Pole|Ski Pole|Snowshoe Pole|Nordic Pole"),
    ("LIG", "Lights", BUNDLE,
     "Headlamp|Camp Lantern|Bike Light|Pocket Torch|Running Light|Solar Lantern"),
    ("CLI", "Climbing", BUNDLE,
     "Screwgate Carabiner|Quickdraw|Belay Device|Sling|Chalk Bag|Climbing Skin"),
)  # fmt: skip


@dataclass(frozen=True)
class Catalogue:
    """Items 0..n-1, laid out line by line: item = (line x colours + colour) x sizes + size."""

    lines: int = 6 * len(SHELVES)
    colours: int = len(COLOURS)
    sizes: int = 2

    @property
    def items(self) -> int:
        return self.lines * self.colours * self.sizes

    def number(
        self, line: npt.NDArray[np.int64], colour: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        return (line * self.colours + colour) * self.sizes + size

    def features(self, item: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """(line, colour, size) of items."""
        return item // (self.colours * self.sizes), item // self.sizes % self.colours, item % self.sizes

    @cached_property
    def table(self) -> list[tuple[str, str, str]]:
        """(id, title, category) of every item."""
        return [
            (f"{code}{line}-{short}-{size + 1}", f"{name}, {colour}, {sizes[size]}", category)
            for code, category, sizes, names in SHELVES
            for line, name in enumerate(names.split("|"), start=1)
            for colour, short in COLOURS.items()
            for size in range(self.sizes)
        ]
