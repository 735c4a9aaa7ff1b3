"""The world -> Facts and Series: configurations, weights, data, logs, cases, versions, hardware."""
