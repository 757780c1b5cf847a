"""Values that are recorded, and computed when they are looked at."""
