"""The catalogue of the demo shop: outdoor gear in 20 categories, 120 product lines, 720 items."""

import math
from functools import cache

COLOURS = {"blue": "BLU", "black": "BLK", "red": "RED"}
# A code, a category and its two sizes; below them its six product lines, on two rows.
SHELVES = """\
RUN | Running shoes | 38 | 42
  Trail Running Shoe | Road Running Shoe | Racing Flat
  Fell Running Shoe | Winter Running Shoe | Recovery Clog
BOO | Hiking boots | 38 | 42
  Leather Hiking Boot | Light Hiking Boot | Mountain Boot
  Approach Shoe | Winter Boot | Hut Slipper
SAN | Sandals | 38 | 42
  Trekking Sandal | Water Shoe | Closed-Toe Sandal
  Camp Sandal | Canyon Shoe | Barefoot Sandal
JAC | Jackets | M | L
  Rain Jacket | Down Jacket | Softshell Jacket
  Wind Jacket | Insulated Parka | Running Jacket
FLE | Fleece | M | L
  Fleece Jacket | Fleece Vest | Grid Fleece Hoodie
  Sherpa Pullover | Stretch Fleece | Fleece Half-Zip
BAS | Base layers | M | L
  Merino Shirt | Merino Long Sleeve | Thermal Top
  Thermal Tights | Mesh Base Layer | Merino Boxer
TRO | Trousers | M | L
  Hiking Trousers | Zip-Off Trousers | Rain Trousers
  Climbing Trousers | Softshell Trousers | Running Tights
SHO | Shorts | M | L
  Running Shorts | Hiking Shorts | Climbing Shorts
  Swim Shorts | Trail Skirt | Cycling Shorts
SOC | Socks | 38 | 42
  Hiking Sock | Running Sock | Merino Liner Sock
  Ski Sock | Compression Sock | Waterproof Sock
GLO | Gloves | M | L
  Touchscreen Glove | Down Mitten | Waterproof Glove
  Liner Glove | Climbing Glove | Running Glove
HAT | Hats | M | L
  Wool Beanie | Sun Hat | Running Cap
  Rain Hat | Neck Gaiter | Headband
BAC | Backpacks | 25 L | 40 L
  Day Pack | Trekking Backpack | Running Vest
  Alpine Pack | Roll-Top Pack | Commuter Pack
BAG | Bags | 25 L | 40 L
  Duffel Bag | Dry Bag | Travel Bag
  Packing Cube | Rope Bag | Hip Pack
TEN | Tents | 2 persons | 4 persons
  Dome Tent | Tunnel Tent | Ultralight Tent
  Tarp | Family Tent | Geodesic Tent
SLE | Sleeping | regular | long
  Down Sleeping Bag | Summer Sleeping Bag | Sleeping Mat
  Inflatable Mat | Camp Quilt | Hammock
STO | Cooking | 2 persons | 4 persons
  Gas Stove | Titanium Pot | Cook Set
  Camp Kettle | Wood Stove | Mess Kit
BOT | Bottles | 0.5 L | 1 L
  Insulated Bottle | Steel Bottle | Filter Bottle
  Soft Flask | Thermos | Water Bladder
POL | Poles | 110 cm | 120 cm
  Trekking Pole | Folding Pole | Running Pole
  Ski Pole | Snowshoe Pole | Nordic Pole
LIG | Lights | single | pair
  Headlamp | Camp Lantern | Bike Light
  Pocket Torch | Running Light | Solar Lantern
CLI | Climbing | single | pair
  Screwgate Carabiner | Quickdraw | Belay Device
  Sling | Chalk Bag | Climbing Skin
"""

LINES = 120
SHAPE = (LINES, len(COLOURS), 2)  # lines, colours and sizes, as the items are numbered
ITEMS = math.prod(SHAPE)


@cache
def item_table() -> list[tuple[str, str, str]]:
    """(id, title, category) of every item."""
    rows = iter(row.strip().split(" | ") for row in SHELVES.splitlines())
    table = []
    for code, category, *sizes in rows:
        names = [*next(rows), *next(rows)]
        for line, name in enumerate(names, start=1):
            for colour, short in COLOURS.items():
                for number, size in enumerate(sizes, start=1):
                    item = f"{code}{line}-{short}-{number}"
                    table.append((item, f"{name}, {colour}, {size}", category))
    return table
