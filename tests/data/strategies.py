"""Random logs of few sessions and items, with times that are equal or on boundaries."""

from hypothesis import strategies as st

HOUR = 3_600_000
START = 1_700_006_400_000  # midnight UTC

names = st.sampled_from([f"s{number}" for number in range(8)])
items = st.sampled_from([f"i{number}" for number in range(6)])
moments = st.integers(0, 12).map(
    lambda quarter: START + 6 * HOUR * quarter
) | st.integers(START, START + 72 * HOUR)
clicks = st.lists(st.tuples(names, items, moments), max_size=60)

# Diginetica's: (session, item, timeframe, day)
days = st.integers(0, 10).map(lambda day: START + 24 * HOUR * day)
timeframes = st.sampled_from([0, 1, 5, 5, 1000, 90_000_000]) | st.integers(0, 1_200_000)
views = st.lists(st.tuples(names, items, timeframes, days), max_size=60)

any_id = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"'),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip() == text and not text.startswith("-"))
