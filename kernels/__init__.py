"""From a scheme to measured latency: rendering, compiling, launching, verifying, timing, exporting."""
