-- `require('draftline')`: what users call. Everything else is loaded when it is needed.
local api = vim.api
local config = require('draftline.config')

local M = {}

local enabled = false

local function state()
  return require('draftline.state')
end

---Plug-in managers make the tags of the help; where there is none, `:help draftline` has to work too.
local function make_help_known()
  for _, text in ipairs(api.nvim_get_runtime_file('doc/draftline.txt', false)) do
    local folder = vim.fs.dirname(text)
    if not vim.uv.fs_stat(folder .. '/tags') then
      pcall(vim.cmd.helptags, vim.fn.fnameescape(folder))
    end
  end
end

---@param given table? see `:help draftline-setup`
function M.setup(given)
  if vim.fn.has('nvim-0.10') == 0 then
    error('draftline: Neovim 0.10 or newer is needed', 0)
  end
  if config.current then
    M.disable()
  end
  config.read(given)
  api.nvim_set_hl(0, 'DraftlineGhost', { link = 'Comment', default = true })
  api.nvim_set_hl(0, 'DraftlineHint', { link = 'NonText', default = true })
  api.nvim_set_hl(0, 'DraftlineOld', { link = 'DiffDelete', default = true })
  api.nvim_set_hl(0, 'DraftlineNew', { link = 'DiffAdd', default = true })
  vim.lsp.commands['draftline.ui.edit'] = function(command, context)
    require('draftline.edit').command(command, context)
  end
  require('draftline.commands').create()
  make_help_known()
  M.enable()
end

function M.enable()
  assert(config.current, 'draftline: call setup first')
  local client = require('draftline.client')
  enabled = true
  local group = api.nvim_create_augroup('draftline', {})
  api.nvim_create_autocmd('FileType', {
    group = group,
    callback = function(event)
      if client.wants(event.buf) then
        client.start(event.buf)
      end
    end,
  })
  -- The server ended, or the buffer.
  api.nvim_create_autocmd('LspDetach', {
    group = group,
    callback = function(event)
      local gone = vim.lsp.get_client_by_id(event.data.client_id)
      if gone and gone.name == 'draftline' then
        client.let_go(event.buf)
      end
    end,
  })
  client.start_all()
end

function M.disable()
  enabled = false
  api.nvim_create_augroup('draftline', {})
  require('draftline.client').stop_all()
end

---End the language server and start it anew. The engine goes on; `draftline stop` ends that.
function M.restart()
  M.disable()
  M.enable()
end

---For the statusline: empty where nothing was set up.
---@return string
function M.status()
  if not config.current then
    return ''
  elseif not enabled then
    return 'Draftline: off'
  end
  local status = state().status
  if not status then
    return #require('draftline.client').clients() > 0 and 'Draftline: starting' or ''
  elseif status.state ~= 'ready' then
    return 'Draftline: ' .. (status.state == 'loading' and 'loading' or 'no engine')
  end
  local speed = type(status.last) == 'table' and status.last.tokens_per_second
  return type(speed) == 'number' and speed > 0 and ('Draftline: ready, %.0f tokens/s'):format(speed)
    or 'Draftline: ready'
end

---Lines that say how things are.
---@return string[]
function M.report()
  local lines = { M.status() ~= '' and M.status() or 'Draftline: no language server was needed yet' }
  local status = state().status
  if status then
    table.insert(lines, ('engine: %s (%s)'):format(status.state, status.message))
    local last = status.last
    if type(last) == 'table' then
      local detail = last.detail and (' (' .. last.detail .. ')') or ''
      table.insert(lines, ('last request: %s%s'):format(last.reason, detail))
      if type(last.prefilled) == 'number' then
        table.insert(lines, ('tokens: %d prefilled, %d reused, %d drafted, %d accepted'):format(
          last.prefilled, last.reused, last.drafted, last.accepted
        ))
      end
    end
  end
  return lines
end

---For mappings of your own: each returns whether there was something to act on, so that you can do something else.
for _, name in ipairs({ 'accept', 'accept_word', 'accept_line', 'dismiss', 'next', 'previous' }) do
  M[name] = function()
    return config.current ~= nil and require('draftline.actions')[name]()
  end
end

return M
