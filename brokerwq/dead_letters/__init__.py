"""Dead letters: look at them, group them, send them back, delete, export and import them.

``queue`` is the way in; it works through ``sweep``, one bounded pass over a queue.
"""

from brokerwq.dead_letters.queue import DeadLetters, Group, Report
from brokerwq.dead_letters.selection import EVERYTHING, Letter, Selection

__all__ = ["EVERYTHING", "DeadLetters", "Group", "Letter", "Report", "Selection"]
