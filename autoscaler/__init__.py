"""What capacity, where, when: observes Ray and the clouds, decides, acts, records."""
