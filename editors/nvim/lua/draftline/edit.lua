-- Edits of lines: asks the server, shows the diff while it is written, or the text of an answer.
local api = vim.api
local diff = require('draftline.diff')
local rpc = require('draftline.rpc')
local state = require('draftline.state')

local M = {}

local REQUEST = 'draftline/edit'
local TEXTS = { explain = true, tests = true }

local running = {} ---@type table<string, fun(value: table)> token of a request -> what its progress is for
local count = 0

local function client_of(bufnr)
  local client = vim.lsp.get_clients({ name = 'draftline', bufnr = bufnr })[1]
  if not client then
    state.tell('no language server in this buffer; `:checkhealth draftline` says why', vim.log.levels.WARN)
  end
  return client
end

---Of ours; everything else is Neovim's own.
function M.progress(err, result, context, config)
  local mine = type(result) == 'table' and running[result.token]
  if mine then
    return mine(result.value)
  end
  return vim.lsp.handlers['$/progress'](err, result, context, config)
end

---@param params table of `draftline/edit`
---@param show fun(value: table) called with what there is so far
---@param ended fun(result: table?) nil: it was cancelled, or failed and is told
---@return fun()? cancel nil when it wasn't sent
local function ask(client, bufnr, params, show, ended)
  count = count + 1
  local token = ('draftline-edit-%d'):format(count)
  params.partialResultToken = token
  running[token] = show
  local id = rpc.request(client, REQUEST, params, function(err, result)
    if running[token] then
      running[token] = nil
      if err then
        state.tell(err.message, vim.log.levels.ERROR)
      end
      ended(not err and type(result) == 'table' and result or nil)
    end
  end, bufnr)
  if not id then
    running[token] = nil
    return
  end
  return function()
    if running[token] then
      running[token] = nil
      rpc.cancel(client, id)
    end
  end
end

local function tell(result)
  local quiet = vim.list_contains({ 'unchanged', 'cancelled', 'none' }, result.reason)
  local words = result.detail ~= '' and result.detail or result.reason
  state.tell(words, quiet and vim.log.levels.INFO or vim.log.levels.WARN)
end

local function ask_for_text(client, bufnr, params)
  local scratch = require('draftline.scratch')
  local view = scratch.open('markdown')
  local cancel = ask(client, bufnr, params, function(value)
    scratch.show(view, value.text or '')
  end, function(result)
    if result and result.reason == 'ready' then
      scratch.show(view, result.text)
    elseif result then
      tell(result)
      scratch.close(view)
    end
  end)
  if cancel then
    api.nvim_create_autocmd('BufWipeout', { buffer = view, once = true, callback = cancel })
  end
end

local function ask_for_diff(client, bufnr, params)
  local shown = diff.begin(bufnr, client.offset_encoding)
  shown.cancel = ask(client, bufnr, params, function(value)
    diff.update(shown, value.hunks or {})
  end, function(result)
    if not result or result.reason ~= 'ready' then
      diff.close(shown)
      if result then
        tell(result)
      end
    else
      diff.finish(shown, result)
    end
  end)
  if not shown.cancel then
    diff.close(shown)
  end
end

---@param bufnr integer
---@param kind string of `draftline/edit`
---@param range table of the protocol
---@param instruction string
function M.run(bufnr, kind, range, instruction)
  local client = client_of(bufnr)
  if not client then
    return
  end
  local params = {
    kind = kind,
    textDocument = { uri = vim.uri_from_bufnr(bufnr), version = vim.lsp.util.buf_versions[bufnr] },
    range = range,
    instruction = instruction,
  }
  if TEXTS[kind] then
    return ask_for_text(client, bufnr, params)
  elseif not vim.bo[bufnr].modifiable then
    return state.tell("the buffer can't be changed", vim.log.levels.WARN)
  elseif kind ~= 'edit' or instruction ~= '' then
    return ask_for_diff(client, bufnr, params)
  end
  vim.ui.input({ prompt = 'Edit: ' }, function(given)
    if given and given:match('%S') and api.nvim_buf_is_valid(bufnr) then
      params.instruction = given
      ask_for_diff(client, bufnr, params)
    end
  end)
end

---Lines of the current buffer, from 1; without them the cursor's place, where nothing is selected.
---@param lines { [1]: integer, [2]: integer }?
function M.run_here(kind, lines, instruction)
  local row = api.nvim_win_get_cursor(0)[1] - 1
  local first, last = row, row
  if lines then
    first, last = lines[1] - 1, lines[2]
  end
  if kind == 'fix' then
    local messages = {}
    for _, problem in ipairs(vim.diagnostic.get(0)) do
      if problem.lnum >= first and problem.lnum <= math.max(last - 1, row) then
        table.insert(messages, problem.message)
      end
    end
    if #messages == 0 then
      return state.tell('there is no diagnostic in these lines to fix', vim.log.levels.INFO)
    end
    instruction = table.concat(messages, '\n')
  end
  local range = { start = { line = first, character = 0 }, ['end'] = { line = last, character = 0 } }
  M.run(api.nvim_get_current_buf(), kind, range, instruction)
end

---Where the last change is to be repeated: shown like any other edit, the cursor at the first place behind it.
function M.next()
  local bufnr = api.nvim_get_current_buf()
  local client = client_of(bufnr)
  if not client then
    return
  end
  local shown = diff.begin(bufnr, client.offset_encoding)
  local params = { textDocument = { uri = vim.uri_from_bufnr(bufnr) }, position = rpc.position(bufnr, client) }
  rpc.request(client, 'draftline/nextEdit', params, function(err, result)
    if err or result.reason ~= 'ready' then
      diff.close(shown)
      return err and state.tell(err.message, vim.log.levels.ERROR) or tell(result)
    end
    diff.finish(shown, result)
    local row = api.nvim_win_get_cursor(0)[1] - 1
    local found = result.hunks[1]
    for _, hunk in ipairs(result.hunks) do
      if hunk.start > row then
        found = hunk
        break
      end
    end
    if diff.of(bufnr) == shown and api.nvim_get_current_buf() == bufnr then
      api.nvim_win_set_cursor(0, { found.start + 1, 0 })
    end
  end, bufnr)
end

---The command of our code actions.
function M.command(command, context)
  local given = command.arguments[1]
  M.run(context.bufnr, given.kind, given.range, given.instruction)
end

return M
