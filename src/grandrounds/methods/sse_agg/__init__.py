"""SSE-AGG: weights by how explanations agree. The method with its site half, and the weights."""
