"""Python functions: gr.watch, gr.watch_consortium and gr.recalibrate."""
