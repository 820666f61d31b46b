"""A headless Chromium and a made run for it to show."""
