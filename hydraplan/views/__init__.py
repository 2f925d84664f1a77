"""Everything people look at."""
