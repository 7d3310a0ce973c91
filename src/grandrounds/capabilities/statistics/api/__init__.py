"""Python functions: gr.glm, gr.cox, gr.table1, gr.kaplan_meier and gr.card."""
