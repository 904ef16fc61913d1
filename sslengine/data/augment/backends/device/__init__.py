"""Operations on the pixels of a batch, by torch, on any device."""
