"""Everything that reads or writes a file: lengths, profiles, plans, runs."""
