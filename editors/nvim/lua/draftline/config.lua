-- What `setup` takes, and that a mistake in it is one line that names the key.
local M = {}

---@class draftline.Config
M.defaults = {
  cmd = { 'draftline', 'lsp' },
  -- The included model knows Python; name more with a model that knows more.
  filetypes = { 'python' },
  root_markers = { '.git', 'pyproject.toml', 'package.json', 'Cargo.toml', 'go.mod' },
  -- Neovim's own inline completion; false: the ghost text of this plug-in, which needs 0.10 only.
  native = vim.fn.has('nvim-0.12') == 1,
  -- For the language server; docs/settings.schema.json has all of them.
  settings = {},
  -- In insert mode, while an item is shown; at other times each does what it did before. false: none.
  keys = {
    accept = '<Tab>',
    accept_word = '<M-Right>',
    accept_line = '<M-Down>',
    dismiss = '<C-]>',
    next = '<M-n>',
    previous = '<M-p>',
  },
  -- In normal mode, while an edit is shown. false: none.
  edit_keys = {
    accept = '<Tab>',
    accept_hunk = '<M-a>',
    reject_hunk = '<M-r>',
    reject = '<C-]>',
  },
  -- In normal mode: where else the last change applies. false: none.
  next_edit_key = '<M-e>',
}

M.current = nil ---@type draftline.Config?

local function fail(key, wanted)
  error(('draftline: option %s must be %s'):format(key, wanted), 0)
end

local function is_list_of_text(value)
  if type(value) ~= 'table' or #value == 0 or vim.tbl_count(value) ~= #value then
    return false
  end
  return vim.iter(value):all(function(one)
    return type(one) == 'string' and one ~= ''
  end)
end

---@param given table?
---@return draftline.Config
function M.read(given)
  given = given or {}
  if type(given) ~= 'table' then
    error('draftline: setup takes a table', 0)
  end
  local defaults = M.defaults
  for key in pairs(given) do
    if defaults[key] == nil then
      error(('draftline: there is no option %s'):format(key), 0)
    end
  end
  for _, key in ipairs({ 'cmd', 'filetypes', 'root_markers' }) do
    if given[key] ~= nil and not is_list_of_text(given[key]) then
      fail(key, 'a list of texts')
    end
  end
  if given.native ~= nil and type(given.native) ~= 'boolean' then
    fail('native', 'true or false')
  end
  if given.native and not vim.lsp.inline_completion then
    fail('native', 'false before Neovim 0.12')
  end
  if given.next_edit_key ~= nil and given.next_edit_key ~= false and type(given.next_edit_key) ~= 'string' then
    fail('next_edit_key', 'a key, or false')
  end
  for _, key in ipairs({ 'settings', 'keys', 'edit_keys' }) do
    if given[key] ~= nil and type(given[key]) ~= 'table' then
      fail(key, 'a table')
    end
  end
  local read = vim.tbl_extend('force', defaults, given)
  for _, option in ipairs({ 'keys', 'edit_keys' }) do
    for key, value in pairs(given[option] or {}) do
      local name = ('%s.%s'):format(option, key)
      if defaults[option][key] == nil then
        error(('draftline: there is no option %s'):format(name), 0)
      end
      if value ~= false and (type(value) ~= 'string' or value == '') then
        fail(name, 'a key, or false')
      end
    end
    read[option] = vim.tbl_extend('force', defaults[option], given[option] or {})
  end
  M.current = read
  return read
end

return M
