"""Who answers requests with trials: a live GPU (`cuda`) or recorded tables (`replay`)."""
