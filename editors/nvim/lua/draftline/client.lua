-- The language server of a buffer: starts it, attaches ghost text and keys, and lets go of both.
local api = vim.api
local config = require('draftline.config')
local rpc = require('draftline.rpc')
local state = require('draftline.state')

local M = {}

local leaving = {} ---@type table<integer, true> clients that are to end

function M.backend()
  return require(config.current.native and 'draftline.native' or 'draftline.ghost')
end

---@return vim.lsp.Client[]
function M.clients()
  return vim.lsp.get_clients({ name = 'draftline' })
end

local function capabilities()
  local made = vim.lsp.protocol.make_client_capabilities()
  -- Neovim 0.11 doesn't say it, and the server wouldn't know that there is ghost text.
  made.textDocument.inlineCompletion = made.textDocument.inlineCompletion or { dynamicRegistration = false }
  made.experimental = { draftline = { edits = true } }
  return made
end

local function attached(client, bufnr)
  M.backend().attach(client, bufnr)
  require('draftline.keys').attach(bufnr, config.current.keys, require('draftline.actions'))
  require('draftline.hint').attach(bufnr)
end

function M.let_go(bufnr)
  M.backend().detach(bufnr)
  require('draftline.keys').detach(bufnr)
  require('draftline.hint').detach(bufnr)
end

local function ended(code, _, client_id)
  vim.schedule(function()
    state.reset()
    if not leaving[client_id] and vim.v.exiting == vim.NIL then
      state.tell(('the language server ended (%d); `:Draftline restart` starts it again'):format(code), vim.log.levels.WARN)
    end
    leaving[client_id] = nil
  end)
end

function M.wants(bufnr)
  local filetypes = config.current.filetypes
  return api.nvim_buf_is_loaded(bufnr)
    and vim.bo[bufnr].buftype == ''
    and (vim.list_contains(filetypes, vim.bo[bufnr].filetype) or vim.list_contains(filetypes, '*'))
end

---Attach to a buffer, and start the server when there is none for its folder.
function M.start(bufnr)
  local settings = config.current.settings
  return vim.lsp.start({
    name = 'draftline',
    cmd = config.current.cmd,
    root_dir = vim.fs.root(bufnr, config.current.root_markers),
    init_options = next(settings) and settings or vim.empty_dict(),
    capabilities = capabilities(),
    handlers = {
      ['draftline/status'] = state.changed,
      ['window/logMessage'] = state.logged,
      ['$/progress'] = require('draftline.edit').progress,
      ['draftline/nextEditAvailable'] = require('draftline.hint').available,
    },
    on_attach = attached,
    on_exit = ended,
  }, { bufnr = bufnr, reuse_client = function(client, wanted)
    return client.name == wanted.name and client.config.root_dir == wanted.root_dir and not leaving[client.id]
  end })
end

---@return integer how many buffers there are that want it
function M.start_all()
  local count = 0
  for _, bufnr in ipairs(api.nvim_list_bufs()) do
    if M.wants(bufnr) then
      count = count + 1
      M.start(bufnr)
    end
  end
  return count
end

function M.stop_all()
  for _, client in ipairs(M.clients()) do
    for bufnr in pairs(client.attached_buffers or vim.empty_dict()) do
      M.let_go(bufnr)
    end
    leaving[client.id] = true
    rpc.stop(client)
  end
end

return M
