# The Neovims that tests/editors/nvim drives, each in a folder of its own below .editors.
.PHONY: nvim-editors

nvim-editors: $(VENV)/installed
	@$(BIN)/python -P editors/install_nvim.py

test: nvim-editors
