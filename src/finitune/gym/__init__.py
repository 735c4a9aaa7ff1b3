"""The gym: tiny real models, honest faults and healthy controls, to test and to measure finitune on."""
