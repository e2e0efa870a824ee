-- `:checkhealth draftline`
local M = {}

local health = vim.health

local function check_neovim()
  local now = vim.version()
  local version = ('%d.%d.%d'):format(now.major, now.minor, now.patch)
  if vim.fn.has('nvim-0.10') == 0 then
    return health.error(('Neovim %s; 0.10 or newer is needed'):format(version))
  end
  local native = require('draftline.config').current.native
  health.ok(('Neovim %s, ghost text: %s'):format(version, native and "Neovim's own" or "the plug-in's own"))
end

local function check_command()
  local command = require('draftline.config').current.cmd
  if vim.fn.executable(command[1]) == 0 then
    return health.error(('`%s` is not a program that can be run'):format(command[1]), {
      'install Draftline (README.md), or give `cmd` the whole path of `draftline`',
    })
  end
  health.ok(('the language server is `%s`'):format(table.concat(command, ' ')))
end

local function check_server()
  local clients = require('draftline.client').clients()
  if #clients == 0 then
    local filetypes = table.concat(require('draftline.config').current.filetypes, ', ')
    return health.info(('no language server is running; it starts with a file of type %s'):format(filetypes))
  end
  for _, client in ipairs(clients) do
    local count = vim.tbl_count(client.attached_buffers or {})
    local info = client.server_info or {}
    health.ok(('language server %s: %d buffers, folder %s'):format(
      info.version or '(version unknown)', count, client.config.root_dir or '(none)'
    ))
  end
  local status = require('draftline.state').status
  if not status then
    health.warn('it has said nothing of its engine yet')
  elseif status.state == 'ready' then
    health.ok(('the engine is ready (%s)'):format(status.message))
  else
    health.warn(('the engine is %s: %s'):format(status.state, status.message), { '`draftline doctor` says more' })
  end
  for _, line in ipairs(vim.list_slice(require('draftline').report(), 3)) do
    health.info(line)
  end
end

local function check_keys()
  local mapped = {}
  for name, key in pairs(require('draftline.config').current.keys) do
    table.insert(mapped, ('%s: %s'):format(name, key or 'no key'))
  end
  table.sort(mapped)
  health.info('keys in insert mode: ' .. table.concat(mapped, ', '))
end

function M.check()
  health.start('draftline')
  if not require('draftline.config').current then
    return health.warn("it isn't set up", { "call require('draftline').setup{} in init.lua" })
  end
  check_neovim()
  check_command()
  check_server()
  check_keys()
end

return M
