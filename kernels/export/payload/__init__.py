"""Files that every export carries as they are: they import nothing of this package."""
