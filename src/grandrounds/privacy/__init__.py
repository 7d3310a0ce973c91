"""What keeps patients private: sums that show no single answer, and noise that is sized for them."""
