"""The fictional world behind the feed: cities, topics, and a few hundred groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

GROUPS = 400
EVENTS_PER_GROUP = 3
TREND = 1.4
"""How far the interest in a topic swings: from e^-1.4 (a quarter of the usual interest) to e^1.4 (four times as
much)."""

CITIES = """
New York|us|NY|40.71|-74.01     London|gb||51.51|-0.13          San Francisco|us|CA|37.77|-122.42
Berlin|de||52.52|13.41          Paris|fr||48.86|2.35            Toronto|ca|ON|43.65|-79.38
Bangalore|in||12.97|77.59       Chicago|us|IL|41.88|-87.63      Sydney|au||-33.87|151.21
Amsterdam|nl||52.37|4.90        Austin|us|TX|30.27|-97.74       Madrid|es||40.42|-3.70
Singapore|sg||1.35|103.82       Seattle|us|WA|47.61|-122.33     Barcelona|es||41.39|2.17
München|de||48.14|11.58         Melbourne|au||-37.81|144.96     Boston|us|MA|42.36|-71.06
Dublin|ie||53.35|-6.26          Tokyo|jp||35.68|139.69          Denver|us|CO|39.74|-104.99
São Paulo|br||-23.55|-46.63     Stockholm|se||59.33|18.07       Vancouver|ca|BC|49.28|-123.12
Warszawa|pl||52.23|21.01        Mumbai|in||19.08|72.88          Manchester|gb||53.48|-2.24
Zürich|ch||47.38|8.54           Lisboa|pt||38.72|-9.14          Atlanta|us|GA|33.75|-84.39
Milano|it||45.46|9.19           Wien|at||48.21|16.37            Portland|us|OR|45.52|-122.68
København|dk||55.68|12.57       México|mx||19.43|-99.13         Edinburgh|gb||55.95|-3.19
Praha|cz||50.08|14.44           Auckland|nz||-36.85|174.76      Cape Town|za||-33.92|18.42
Buenos Aires|ar||-34.60|-58.38
"""

THEMES = {
    "tech": ("Python", "Data Science", "Machine Learning", "Open Source", "Web Development", "Cloud Computing"),
    "outdoors": ("Hiking", "Camping", "Cycling", "Kayaking", "Bird Watching", "Trail Running"),
    "language": ("Language Exchange", "Spanish", "Japanese", "French", "English", "Sign Language"),
    "games": ("Board Games", "Chess", "Role Playing Games", "Pub Quiz", "Go", "Puzzles"),
    "arts": ("Photography", "Sketching", "Creative Writing", "Book Club", "Pottery", "Theatre"),
    "music": ("Live Music", "Choir", "Salsa Dancing", "Swing Dancing", "Guitar", "Jazz"),
    "food": ("Dining Out", "Vegan", "Baking", "Coffee", "Wine", "Street Food"),
    "business": ("Startups", "Public Speaking", "Freelancing", "Product Management", "Marketing", "Investing"),
    "wellness": ("Yoga", "Meditation", "Running", "Swimming", "Climbing", "Tai Chi"),
    "family": ("New in Town", "Playgroups", "Dog Walking", "Gardening", "Repair Cafe", "Volunteering"),
}
GATHERINGS = ("Meetup", "Circle", "Collective", "Society", "Club", "Crew", "Friends", "Lab")
OCCASIONS = ("Monthly Meetup", "Open Evening", "Beginners Welcome", "Summer Social", "Workshop", "Weekend Session")
VENUES = ("The Lantern", "Old Mill Hall", "Corner Library", "Canal House", "Room 12", "The Greenhouse", "Dockside Cafe")


@dataclass(frozen=True)
class City:
    name: str
    country: str
    state: str
    lat: float
    lon: float


@dataclass(frozen=True)
class Topic:
    """A topic that groups meet about. The interest in each topic rises and falls with a different period."""

    name: str
    period_s: float
    phase: float

    @property
    def urlkey(self) -> str:
        return self.name.lower().replace(" ", "-")

    def heat(self, elapsed_s: float) -> float:
        """Return the interest in the topic at this moment; 1 is the average."""
        return math.exp(TREND * math.sin(2 * math.pi * elapsed_s / self.period_s + self.phase))


@dataclass(frozen=True)
class Meetup:
    event_id: str
    name: str
    hours_ahead: int
    venue_id: int
    venue_name: str | None


@dataclass(frozen=True)
class Group:
    """A group of people in a city. The first of its topics decides whether the group is trending."""

    group_id: int
    name: str
    city: City
    topics: tuple[Topic, ...]
    meetups: tuple[Meetup, ...]
    size: float

    @property
    def urlname(self) -> str:
        return self.name.replace(" ", "-")

    def pull(self, elapsed_s: float) -> float:
        """Return the group's weight at this moment. The group's share of the RSVPs is proportional to its weight."""
        return self.size * self.topics[0].heat(elapsed_s)


def invent(random: Random) -> tuple[Group, ...]:
    """Return all groups, largest first. The same random numbers produce the same groups."""
    cities = [_city(entry) for line in CITIES.strip().splitlines() for entry in line.split("  ") if entry.strip()]
    themes = [[_topic(name, random) for name in names] for names in THEMES.values()]
    homes = random.choices(cities, zipf(len(cities), 0.9), k=GROUPS)
    sizes = zipf(GROUPS, 0.5)
    return tuple(
        _group(100_000 + place, random, home, random.choice(themes), size)
        for place, (home, size) in enumerate(zip(homes, sizes, strict=True))
    )


def zipf(count: int, skew: float) -> list[float]:
    """Return weights that follow Zipf's law, in decreasing order. With a skew of 1, the nth weight is 1/n of the
    first."""
    return [place**-skew for place in range(1, count + 1)]


def _city(entry: str) -> City:
    name, country, state, lat, lon = entry.strip().split("|")
    return City(name, country, state, float(lat), float(lon))


def _topic(name: str, random: Random) -> Topic:
    return Topic(name, period_s=random.uniform(480, 1500), phase=random.uniform(0, 2 * math.pi))


def _group(group_id: int, random: Random, city: City, theme: list[Topic], size: float) -> Group:
    topics = random.sample(theme, k=random.randint(2, 4))
    name = f"{city.name} {topics[0].name} {random.choice(GATHERINGS)}"
    return Group(group_id, name, city, tuple(topics), tuple(_meetup(random) for _ in range(EVENTS_PER_GROUP)), size)


def _meetup(random: Random) -> Meetup:
    return Meetup(
        event_id=str(random.randrange(200_000_000, 300_000_000)),
        name=random.choice(OCCASIONS),
        hours_ahead=random.randrange(6, 24 * 30),
        venue_id=random.randrange(1_000_000, 9_999_999),
        venue_name=random.choice(VENUES) if random.random() < 0.95 else None,
    )
