"""FedXChain: aggregation weights by trust, which every site recomputes. Server half, site half, rewards, summary, incompatible
settings."""
