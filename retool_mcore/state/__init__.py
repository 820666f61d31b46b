"""What the processes of a stage, its launcher and who looks on tell each other by files of the run's folder.

No torch here, and no library of engines."""
