"""The words that say something about a value (`not 5`), and the names of which expressions are made."""

from retool_mcore.rewards.grader.tables import TABLES
from retool_mcore.rewards.grader.text import FUNCTION_NAMES, GREEK_NAMES

CLAIM_WORDS = frozenset(TABLES["claims"].split())
FORMS = FUNCTION_NAMES.union(TABLES["forms"].split(), GREEK_NAMES)
