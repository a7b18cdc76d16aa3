#Requires -RunAsAdministrator
# Registers the Forewarn agent as a Windows service, with Shawl (https://github.com/mtkennerly/shawl).
#
#     .\install-service.ps1 -Python 'C:\Program Files\forewarn\venv\Scripts\python.exe' `
#                           -Shawl 'C:\Program Files\forewarn\shawl.exe'
#
# A second run registers the service again, and keeps configuration and state. To remove the service:
#     Stop-Service forewarn-agent; sc.exe delete forewarn-agent

[CmdletBinding()]
param(
    [Parameter(Mandatory)] [string] $Python,
    [Parameter(Mandatory)] [string] $Shawl
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$Name = 'forewarn-agent'
$Folder = Join-Path $env:ProgramData 'forewarn'
$Config = Join-Path $Folder 'agent.toml'
$Log = Join-Path $Folder 'log'

function Invoke-Program {
    # Windows PowerShell does not stop the script when a program fails. This function does.
    param([Parameter(Mandatory)] [string] $Program, [string[]] $Arguments)
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Program ended with status $LASTEXITCODE" }
}

foreach ($File in $Python, $Shawl) {
    if (-not (Test-Path -LiteralPath $File -PathType Leaf)) { throw "there is no $File" }
}

# Any user may create files in ProgramData. The agent runs the commands in its configuration as SYSTEM, and the folder
# holds the token for `forewarn agent approve`. So only SYSTEM (S-1-5-18) and administrators (S-1-5-32-544) get access.
New-Item -ItemType Directory -Force -Path $Folder, $Log | Out-Null
Invoke-Program icacls.exe @($Folder, '/setowner', '*S-1-5-32-544', '/T', '/Q')
Invoke-Program icacls.exe @(
    $Folder, '/inheritance:r', '/grant:r', '*S-1-5-18:(OI)(CI)F', '*S-1-5-32-544:(OI)(CI)F', '/Q'
)
Invoke-Program icacls.exe @("$Folder\*", '/reset', '/T', '/Q')

foreach ($File in 'agent.toml', 'drain.ps1') {
    $Target = Join-Path $Folder $File
    if (-not (Test-Path -LiteralPath $Target)) {
        Copy-Item -LiteralPath (Join-Path $PSScriptRoot $File) -Destination $Target
    }
}
Invoke-Program $Python @('-m', 'forewarn', 'agent', 'check', '--config', $Config)

if (Get-Service -Name $Name -ErrorAction SilentlyContinue) {
    Stop-Service -Name $Name
    Invoke-Program sc.exe @('delete', $Name)
}

# To stop the agent, Shawl sends it Ctrl-C, waits for up to the stop time-out, and then kills it with all its child
# processes. Shawl restarts the agent if its exit status is not 0.
Invoke-Program $Shawl @(
    'add', '--name', $Name, '--cwd', $Folder, '--log-dir', $Log,
    '--stop-timeout', '15000', '--kill-process-tree',
    '--restart-if-not', '0', '--restart-delay', '3000',
    '--', $Python, '-m', 'forewarn.agent', '--config', $Config
)
# Windows restarts Shawl if Shawl crashes.
Invoke-Program sc.exe @('failure', $Name, 'reset=', '86400', 'actions=', 'restart/5000')
Set-Service -Name $Name -StartupType Automatic -DisplayName 'Forewarn agent' `
    -Description 'Prepares this VM for maintenance events.'
Start-Service -Name $Name
Get-Service -Name $Name
